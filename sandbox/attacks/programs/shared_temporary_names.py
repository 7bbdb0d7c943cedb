# mypy: ignore-errors
# group: others
# tries: to predict only the names that tempfile draws, from a generator of its own
# breach: two calls draw the same
# expect: ok
# output: HELD: drawn
# held-by: fresh seeds
# compare: differ
import tempfile

names = tempfile._get_candidate_names()
print("HELD: drawn", next(names), next(names))
# %% call
# tries: to draw again
# expect: ok
# output: HELD: drawn
import tempfile

names = tempfile._get_candidate_names()
print("HELD: drawn", next(names), next(names))
