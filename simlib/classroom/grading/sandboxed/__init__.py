"""What runs in the sandbox: the examiner, which is ours, and the shell for the student's cells."""
