"""What `heedful generate` does besides continuing texts: pictures, forecasts, drafts, schemas."""
