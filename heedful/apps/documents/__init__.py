"""Documents translated in place: text is found, translated, put back; all else stays as it is."""
