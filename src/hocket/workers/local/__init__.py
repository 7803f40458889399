"""Workers that are processes of this machine, forked by a zygote."""
