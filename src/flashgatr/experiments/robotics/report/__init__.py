"""The report on runs of the robotics experiment.

    report.json     all numbers: of runs, of groups (mean, standard error over seeds), of the paper
    figure.png      reward against the number of demonstrations
    strip.png       one scene with each model: pictures from beginning to end
    curves.png      validation loss during training

`contents.REPORT` is the experiment's report. A group is a model with its settings and a number of
demonstrations.
"""
