"""The page to look at runs (`aaml lab`): films of runs, decisions taken apart, curves, comparisons."""
