"""A model over HTTP that answers from a script: real wire formats and faults for tests, demos and the benchmark."""
