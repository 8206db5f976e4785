"""A policy as a score plugin of kube-scheduler: the plugin's Go source (`go/`), and the weights that it reads."""
