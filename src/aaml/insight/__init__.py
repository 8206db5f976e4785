"""Why a pod went where it went (`explain`), and the replay of a run that such a decision is looked up in."""
