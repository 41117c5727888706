"""Import and export of other projects' model directories."""
