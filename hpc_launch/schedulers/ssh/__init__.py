"""Hosts without a scheduler, reached by ssh (`scheduler: ssh`): a supervisor on the first host starts the others."""
