"""Jobs of a cluster that is reached by ssh alone, say from a laptop.

Here: `ssh` is the place that users name, `line` the connection, `remote_state` what is known of a
job. There: `far` answers. `files` says what travels, for both.
"""
