"""The learner's side: recipe, algorithm, update, evaluation and the command line."""
