"""Choosing tokens: against probabilities written out by hand."""

import numpy as np
import pytest

from andrea_export.errors import InputError, NonFiniteLogitsError
from andrea_export.session.sampling import Sampler, Sampling

# softmax of these is 0.5, 0.25, 0.125, 0.125
LOGITS = np.log(np.array([0.125, 0.5, 0.125, 0.25], np.float32))


def draw(sampling, n=4000, logits=LOGITS):
    sampler = Sampler(sampling)
    return np.array([sampler.choose(logits) for _ in range(n)])


def shares(drawn):
    return np.bincount(drawn, minlength=4) / len(drawn)


def test_greedy_takes_the_likeliest_and_ties_go_to_the_lower_id():
    assert Sampler(Sampling()).choose(LOGITS) == 1
    assert Sampler(Sampling()).choose(np.array([1.0, 3.0, 3.0])) == 1


def test_temperature_one_draws_the_models_own_probabilities():
    # Four standard deviations of a share of 0.5 over 4000 draws are 0.032.
    assert shares(draw(Sampling(temperature=1.0))) == pytest.approx(
        [0.125, 0.5, 0.125, 0.25], abs=0.032
    )


def test_temperature_half_squares_the_probabilities():
    squared = np.array([0.125, 0.5, 0.125, 0.25]) ** 2
    expected = squared / squared.sum()
    assert shares(draw(Sampling(temperature=0.5))) == pytest.approx(expected, abs=0.032)


def test_top_k_keeps_the_k_likeliest():
    assert shares(draw(Sampling(top_k=2))) == pytest.approx([0, 2 / 3, 0, 1 / 3], abs=0.032)
    assert set(draw(Sampling(top_k=1, temperature=5.0), 50)) == {1}
    assert set(draw(Sampling(top_k=99), 500)) == {0, 1, 2, 3}


@pytest.mark.parametrize("k", [1, 2, 7, 50])
def test_top_k_keeps_the_lower_ids_of_those_that_tie_for_the_last_place(k):
    # Half precision gives few different logits. Python's own sort is stable.
    logits = np.random.default_rng(3).integers(0, 6, 900).astype(np.float32)
    likeliest = sorted(range(900), key=lambda token: -logits[token])[:k]
    assert set(draw(Sampling(top_k=k, temperature=1e4), 40 * k, logits)) == set(likeliest)


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, {1}), (0.6, {1, 3}), (0.8, {0, 1, 3})])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, kept):
    assert set(draw(Sampling(top_p=top_p), 500)) == kept


def test_same_seed_gives_the_same_tokens_and_another_does_not():
    one, two = Sampling(temperature=1.0, seed=5), Sampling(temperature=1.0, seed=6)
    assert (draw(one, 50) == draw(one, 50)).all()
    assert (draw(one, 50) != draw(two, 50)).any()


def test_runtimes_that_round_differently_draw_the_same_tokens():
    # The bound of a float32 graph is 1e-5 of the logits' RMS. A number drawn against a cumulative
    # sum gives another token 13 times in these 4000 draws.
    random = np.random.default_rng(11)
    samplers = [Sampler(Sampling(temperature=1.5, seed=8)) for _ in range(2)]
    for _ in range(4000):
        logits = random.normal(0, 1, 2305)
        rounded = logits + random.uniform(-1e-5, 1e-5, 2305)
        one, two = (
            sampler.choose(values.astype(np.float32))
            for sampler, values in zip(samplers, (logits, rounded), strict=True)
        )
        assert one == two


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits():
    sampler = Sampler(Sampling(repetition_penalty=2.0))
    assert sampler.choose(np.array([3.0, 2.0, 0.0]), [0, 0]) == 1  # 3 becomes 1.5
    assert sampler.choose(np.array([3.0, 1.0, 0.0]), [0, 0]) == 0
    assert sampler.choose(np.array([-1.0, -1.5, -9.0]), [0]) == 1  # -1 becomes -2
    assert Sampler(Sampling()).choose(np.array([3.0, 2.0]), [0]) == 0


@pytest.mark.filterwarnings("error")
def test_temperature_near_zero_is_greedy_and_a_huge_one_is_uniform():
    logits = np.array([1.0, 30.0, -2.0], np.float32)
    assert set(draw(Sampling(temperature=1e-310), 50, logits)) == {1}
    assert np.bincount(draw(Sampling(temperature=1e300), 3000, logits)) / 3000 == pytest.approx(
        [1 / 3, 1 / 3, 1 / 3], abs=0.035
    )


def test_minus_infinity_is_a_token_that_never_comes():
    logits = np.array([0.0, -np.inf, 0.0, -np.inf])
    assert set(draw(Sampling(temperature=1.0), 200, logits)) == {0, 2}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_failed_logits_stop_the_generation(bad):
    with pytest.raises(NonFiniteLogitsError, match="1 of 3 logits are NaN or Inf"):
        Sampler(Sampling()).choose(np.array([0.0, bad, 1.0]))


def test_logits_that_leave_no_token_stop_the_generation():
    with pytest.raises(NonFiniteLogitsError, match="3 of 3 logits are NaN or Inf"):
        Sampler(Sampling()).choose(np.full(3, -np.inf))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0.0}, "temperature must be a number above 0, not 0"),
        ({"temperature": -1.0}, "temperature must be a number above 0, not -1"),
        ({"temperature": float("nan")}, "temperature must be a number above 0, not nan"),
        ({"top_k": 0}, "top-k must be at least 1, not 0"),
        ({"top_p": 0.0}, "top-p must be above 0 and at most 1, not 0"),
        ({"top_p": 1.5}, "top-p must be above 0 and at most 1, not 1.5"),
        ({"seed": -3}, "seed must be 0 or more, not -3"),
        ({"repetition_penalty": 0.0}, "repetition-penalty must be from 0.01 to 100.0, not 0"),
    ],
)
def test_values_out_of_range_are_refused(values, message):
    with pytest.raises(InputError, match=message):
        Sampling(**values)
