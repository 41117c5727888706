"""Markdown: the prose to translate, and the syntax of CommonMark and its extensions to keep."""
