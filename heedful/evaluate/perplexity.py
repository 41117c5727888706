"""Negative log-probabilities as numbers that people compare.

All take a sum of negative natural-log probabilities and what it is to be shared among; the sum of
no units is nothing to divide, so a count of 0 is the caller's bug.
"""

from __future__ import annotations

import math


def perplexity(negative_log_likelihood: float, count: int) -> float:
    """exp of the mean negative log-probability: the size of an equally uncertain fair choice.

    Args:
        negative_log_likelihood: summed over all units, in nats.
        count: units, such as tokens; the end token is one of them where the model predicts it.

    Returns:
        The perplexity, infinite where it exceeds what a float holds.
    """
    assert count > 0, "perplexity of nothing"
    try:
        return math.exp(negative_log_likelihood / count)
    except OverflowError:
        return math.inf


def bits_per_unit(negative_log_likelihood: float, count: int) -> float:
    """The mean negative log-probability in bits.

    Args:
        negative_log_likelihood: summed over the text, in nats.
        count: units of the text: characters give bits per character, bytes bits per byte. The
            sum may be over tokens: bits per character do not depend on how the text was cut.
    """
    assert count > 0, "bits of nothing"
    return negative_log_likelihood / count / math.log(2)
