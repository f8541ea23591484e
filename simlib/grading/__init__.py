"""The classroom: grade a folder of notebooks, check one's own, hand exercises out.

`source` and `exercise` know what was handed out, `submission` and `transplant` what came back.
`session` runs both by nbval, in the kernel that `sandbox` shuts in; `inside` is what runs in there.
`grade` makes points of it, `batch` of a whole class, `reports` tells them.
"""
