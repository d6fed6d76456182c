-- Which tables answer most questions? SHOW TABLES asks this.
SELECT * FROM (VALUES
    ('runs', 'a process of a training: when, where, its joules'),
    ('epochs', 'an epoch: joules, seconds, power limit'),
    ('steps', 'a step: joules, milliseconds, power limit'),
    ('named', 'a part of a script that has a name'),
    ('phases', 'a phase of steps: forward, backward and others'),
    ('run_energy', 'a whole run: joules, each GPU counted once'),
    ('decisions', 'a power limit that was chosen, and why'),
    ('trials', 'a power limit that was measured'),
    ('savings', 'a chosen limit: the joules it has saved'),
    ('waste', 'a part of a run that trained nothing'),
    ('costs', 'a run in money and carbon'),
    ('gpus', 'a GPU'),
    ('power', 'a second of a GPU: watts, clock, temperature'),
    ('metrics', 'a value that a script reported'),
    ('gaps', 'what is missing, and why')
) AS known(name, one_row_is);
