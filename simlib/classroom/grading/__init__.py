"""The classroom: grade a folder of notebooks, check one's own, hand exercises out.

`source` and `exercise` read what was handed out, `collect` and `notebook_file` what came back.
`merge_answers` puts the answers of one into the other. `session` runs the result by nbval, in the
kernel that `sandbox` shuts in: there `examiner` and `graded_checks` examine, and `shell` runs the
student's cells in a process of its own. `grade` and `score` make points of it, `whole_class` grades
many, `reports` and `pages` write them down.
"""
