"""Distributions and intervals, on logits made by hand."""

import dataclasses
import math

import numpy as np
import pytest

from andrea_export.report.detail import DetailedAccumulator, PlacedWindow


def accumulate(reference, candidate, targets=None, chunk=7):
    """In chunks, as a report does it: the result must not depend on them."""
    total = DetailedAccumulator()
    for start in range(0, len(reference), chunk):
        part = slice(start, start + chunk)
        rows = np.arange(len(reference))[part] // 16
        indexes = np.arange(len(reference))[part] % 16
        wanted = None if targets is None else targets[part]
        total.add(PlacedWindow(reference[part], wanted, 0, rows, indexes), candidate[part])
    return total


@pytest.fixture
def logits():
    random = np.random.default_rng(1)
    reference = random.normal(0, 2, (64, 11))
    return reference, (reference + random.normal(0, 0.3, reference.shape)).astype(np.float32)


def divergences(reference, candidate):
    def log_softmax(x):
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    p, q = log_softmax(reference), log_softmax(candidate.astype(np.float64))
    return (np.exp(p) * (p - q)).sum(-1)


def test_percentile_cosine_and_overlap_are_numpys(logits):
    reference, candidate = logits
    details = accumulate(*logits).details()
    assert details.kl_p99 == pytest.approx(np.percentile(divergences(*logits), 99), rel=1e-9)
    wide = candidate.astype(np.float64)
    cosine = (wide * reference).sum() / np.linalg.norm(wide) / np.linalg.norm(reference)
    assert details.cosine == pytest.approx(cosine, rel=1e-12)
    top = [set(np.argsort(-each)[:, :5][i]) for each in (reference, wide) for i in range(64)]
    shares = [len(top[i] & top[64 + i]) / 5 for i in range(64)]
    assert details.top5_overlap == pytest.approx(np.mean(shares))


def test_chunks_change_nothing(logits):
    few, whole = (accumulate(*logits, chunk=chunk).details() for chunk in (5, 64))
    assert dataclasses.replace(few, cosine=whole.cosine) == whole
    assert few.cosine == pytest.approx(whole.cosine, rel=1e-14)


def test_the_histogram_counts_every_position(logits):
    details = accumulate(*logits).details()
    assert sum(details.kl_histogram) == 64
    expected = np.digitize(np.log10(divergences(*logits)), np.arange(-17, 2.5, 0.5))
    assert details.kl_histogram == tuple(np.bincount(expected, minlength=40))


def test_equal_logits_stand_in_the_first_bin_and_agree_everywhere(logits):
    reference, _ = logits
    details = accumulate(reference, reference.astype(np.float64)).details()
    assert details.kl_histogram[0] == 64
    assert all(share == 1.0 for _, _, share, _ in details.by_position)
    assert details.top5_overlap == 1.0


def test_stretches_follow_the_position_in_the_window(logits):
    reference, candidate = logits
    candidate = candidate.copy()
    candidate[np.arange(64) % 16 == 3] = -reference[np.arange(64) % 16 == 3]
    details = accumulate(reference, candidate).details()
    starts = [start for start, *_ in details.by_position]
    assert starts == list(range(16))
    assert [count for _, count, *_ in details.by_position] == [4] * 16
    assert max(details.by_position, key=lambda stretch: stretch[3])[0] == 3


def test_the_worst_tokens_are_the_largest_divergences_in_order(logits):
    kl = divergences(*logits)
    worst = accumulate(*logits).worst_tokens()
    assert [token.kl for token in worst] == pytest.approx(sorted(kl)[::-1][:10], rel=1e-9)
    place = worst[0].place
    assert 16 * place.row + place.index == int(kl.argmax())
    reference = logits[0][kl.argmax()]
    assert worst[0].reference[0][0] == int(reference.argmax())
    share = math.exp(reference.max()) / np.exp(reference).sum()
    assert worst[0].reference[0][1] == pytest.approx(share)


def test_without_text_there_is_no_interval(logits):
    details = accumulate(*logits).details()
    assert details.perplexity_interval is None
    assert details.perplexity_change is None


def test_the_interval_holds_the_perplexity_and_the_paired_one_is_tighter(logits):
    reference, candidate = logits
    targets = np.random.default_rng(2).integers(0, 11, 64)
    total = accumulate(reference, candidate, targets)
    figures, details = total.figures(), total.details()
    low, high = details.perplexity_interval
    assert low < figures.perplexity < high
    change = figures.perplexity / figures.reference_perplexity - 1
    assert details.perplexity_change == pytest.approx(change, rel=1e-9)
    narrow = details.perplexity_change_interval
    assert narrow[0] < change < narrow[1]
    assert narrow[1] - narrow[0] < (high - low) / figures.perplexity


def test_the_interval_is_as_wide_as_the_scatter_of_means():
    """Independent losses: 95 % of means lie within 1.96 standard errors."""
    random = np.random.default_rng(3)
    reference = random.normal(0, 1, (4096, 5))
    targets = random.integers(0, 5, 4096)
    total = DetailedAccumulator()
    rows, indexes = np.arange(4096) // 256, np.arange(4096) % 256
    total.add(PlacedWindow(reference, targets, 0, rows, indexes), reference)
    low, high = total.details().perplexity_interval
    log_probs = reference - np.log(np.exp(reference).sum(-1, keepdims=True))
    error = log_probs[np.arange(4096), targets].std() / math.sqrt(4096)
    assert math.log(high / low) == pytest.approx(2 * 1.96 * error, rel=0.15)


def test_positions_with_nan_are_left_out(logits):
    reference, candidate = logits
    candidate = candidate.copy()
    candidate[5, 2] = np.nan
    details = accumulate(reference, candidate).details()
    assert sum(details.kl_histogram) == 63


def test_nothing_but_nan_leaves_no_details(logits):
    reference, _ = logits
    total = accumulate(reference, np.full_like(reference, np.nan))
    assert math.isnan(total.details().kl_p99)
    assert total.worst_tokens() == ()
