"""Arena-Hard: a judge compares answers with those of a baseline, twice, with sides swapped."""
