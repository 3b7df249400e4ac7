"""Thirty English sentences to be spoken and heard again: ours, plain, numbers as words, no rare names.

Of each, a listener writes down one thing alone: no two words in a row that could be one number, no time of the day with
minutes, no word that is spelled in two ways, no possessive that sounds like a plural.
"""

__all__ = ["SENTENCES"]

SENTENCES = (
    "The train leaves the station at nine in the morning.",
    "Please put the clean glasses back on the top shelf.",
    "She walked along the river until the sun went down.",
    "We need three eggs, some butter and a cup of flour.",
    "The children played football in the park after school.",
    "Can you tell me where the nearest bank is?",
    "My brother bought a small house near the sea last summer.",
    "Open the window, because it is very warm in here.",
    "The meeting will start in twenty-five minutes, so please be on time.",
    "A good book and a hot drink are all I need on a rainy evening.",
    "He forgot his keys and had to wait outside for an hour.",
    "The doctor told him to drink more water and sleep longer.",
    "There are twelve months in a year and seven days in a week.",
    "The old bridge was closed because the storm had damaged it.",
    "I would like a table for four people by the window.",
    "The cat sleeps on the warm stones behind the kitchen.",
    "They planted forty trees along the road to the village.",
    "What do you usually eat for breakfast on a working day?",
    "The teacher wrote a long list of words on the board.",
    "Turn left at the second corner and walk past the church.",
    "Our flight was late, but we still arrived before dinner.",
    "The new machine uses half as much power as the old one.",
    "It has been snowing in the mountains since early this morning.",
    "Nobody knew why the lights in the office had gone out.",
    "Thank you for your letter, which I read with great interest.",
    "The library keeps more than six hundred maps of the city.",
    "If you are hungry, there is some soup left in the fridge.",
    "The farmer sold all of his apples at the market on Saturday.",
    "A computer follows the rules that people give to it.",
    "When the music stopped, everyone in the room began to clap.",
)
