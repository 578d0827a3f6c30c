"""JupyterLab as a learner has it: a real server, a real browser, a mouse and a keyboard."""
