"""The peers: how each is found on this machine and how it is started."""
