"""The report on n-body runs.

    report.json     all numbers: of runs, of groups (mean, standard error over seeds), of the
                    authors, and of the guess that bodies move on straight lines
    figure.png      error against the number of training systems, on the three evaluation sets
    curves.png      validation error during training
    trajectories.png  a few systems, true and predicted

`contents.REPORT` is the experiment's report. A group is a model with its settings and a number of
training systems.
"""
