"""The data doctor: checks, cleans and splits corpora of sentence pairs, one pair at a time.

Nothing is imported here, so that the settings load quickly.
"""
