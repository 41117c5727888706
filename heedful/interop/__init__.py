"""Other projects' model directories, read and written."""
