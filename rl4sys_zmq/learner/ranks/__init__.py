"""Several processes that train one client together (the option ``learners``)."""
