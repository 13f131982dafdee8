"""The runtime: programs, replicas, launcher and command line, composed from the other rooms."""
