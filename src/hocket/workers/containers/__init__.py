"""Workers in containers of this machine, by the command of Docker or Podman."""
