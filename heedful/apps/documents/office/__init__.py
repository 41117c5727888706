"""Documents of Office programs: paragraphs of runs in an archive of XML."""
