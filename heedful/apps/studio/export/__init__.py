"""The course as files for any web host."""
