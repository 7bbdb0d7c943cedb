"""The web page of `rocstar view`. It reads the files of runs and writes none."""
