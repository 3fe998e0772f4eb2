"""The command line: a module a verb, loaded when the verb is called."""
