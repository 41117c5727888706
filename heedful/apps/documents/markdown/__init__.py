"""Markdown: its words, and what CommonMark and its extensions keep."""
