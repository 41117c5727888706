"""Pictures, forecasts, drafts and schemas of `heedful generate`."""
