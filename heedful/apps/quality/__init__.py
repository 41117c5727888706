"""Checks of translations: reports by sentence, second searches, and calibrated confidence."""
