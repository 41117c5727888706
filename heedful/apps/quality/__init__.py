"""Checks of translations: a report for each sentence, second tries, and calibrated confidence."""
