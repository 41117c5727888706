"""Office documents: paragraphs of runs in an archive of XML files."""
