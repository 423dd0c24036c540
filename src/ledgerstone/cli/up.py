def up(call): pass
