"""The agent of a worker: the control plane of a job. Imports only the standard library.

Each worker has one agent, a small child process (`process.py`), and talks to it through a pipe (`client.py`). The agent
keeps one signed connection to the agent of rank 0 (`channel.py`, `keys.py`; `listener.py`, `dialing.py` open it):

    exchange.py    the workers meet, compare their values and try their addresses; rank 0 decides (`decision.py`)
    peers.py       then the agents exchange heartbeats, and name workers that are lost
    peer_loss.py   the worker's side: its progress, and its end after a loss
"""
