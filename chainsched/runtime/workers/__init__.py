"""How claimed jobs run: the worker, its child processes and the messages between them."""
