"""Why a pod went where it went (`explain`), and the film of a run that such a decision is looked up in."""
