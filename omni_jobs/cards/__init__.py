"""Cards: the graphics cards of a host, what stages take of their memory, and which could hold which.

cards_of_host()                         the cards that the driver knows
need_of(pipeline, stage, directory)     reckoned from the files of a checkpoint, without loading it
divided(needs, [80 * 10**9])            which card each stage has, and which share of it
    shortage(pipeline, stage, settings, 0)  why a stage may not have been loaded onto a card
"""

from omni_jobs.cards.division import CardPlace, divided
from omni_jobs.cards.host import Card, cards_of_host
from omni_jobs.cards.need import CardNeed, need_of
from omni_jobs.cards.shortage import shortage

__all__ = ["Card", "CardNeed", "CardPlace", "cards_of_host", "divided", "need_of", "shortage"]
