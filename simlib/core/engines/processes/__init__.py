"""The engine of real ranks: processes of this machine, Gloo between them, wall clock."""
