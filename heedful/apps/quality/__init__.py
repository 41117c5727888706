"""Checks of translations: reports on sentences, second searches, and calibrated confidence."""
