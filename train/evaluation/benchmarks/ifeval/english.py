"""What `sentences` knows of English: words that the original's model of a newspaper treats alike."""

_ABBREVIATIONS = """
mr mrs ms dr prof st jr sr gen col lt maj adm sen rep reps messrs
inc ltd co cos corp bros cie
jan feb aug sep sept oct nov dec tues wed fri
u.s u.k u.n u.s.a u.s.s.r d.c l.a n.y n.j n.c s.c n.d n.h n.m n.v w.va ala ariz calif colo conn fla ga ill
kan ky mich minn okla ore tenn va vt wash wis
a.m p.m ph.d vs ave ft yr mg ok chg
a.a a.c c.v d.h e.l e.m h.c h.f j.b j.c j.j j.k j.p j.r r.j r.k w.c
c d e f g h k l m n p r s t v w
"""
ABBREVIATIONS = frozenset(_ABBREVIATIONS.split())
"""Words whose period belongs to them, in lower case, without it."""

_STARTERS = """
above although always anyone apply ask assuming begin believe both build but calculate cannot check choose
collect conclusion consider convert create define depending describe description despite determine develop
discussion does early enable encourage engage enjoy ensure enter establish evaluate even example exercise
experience explain explanation explore finally finish follow furthermore gather generate given he her here
highlight however i if imagine implement improved in include incorporate indeed input install instead
integrate into it learn leverage locate looking maintain many meanwhile moreover morning most neither
nevertheless nor note nothing otherwise overall perform please practice prepare present presentation
probably provide question regularly remember remove replace section select similarly since sincerely
slowly so some someone sometimes sorry spend statement step still such testing thank thanks the them there
therefore these they think this though through thus together try turn ultimately under understand
unfortunately unlike upon user using very welcome were when whether which while within without writing yes
yet your
"""
STARTERS = frozenset(_STARTERS.split())
"""Words with a capital only where a sentence begins, so that they begin one behind an abbreviation too."""

_ORDINARY = """
a about actually add after again all also an and another any are as at basically be because before bring by
can change clearly close come continue could day do during each every everyone everything few find first
focus for from get give go goal good great had has have his how identify increase introduction is its join
just keep key know later let life like look love main make maybe more much music my name never new next
night no nobody not now of offer often on once one only open or other our out output over people perhaps
place plus project read reading reduce research rest return review run save say second see set she should
show something split start stay stop take technology tell test than that their then those time to today too
two understanding until up use users usually visit was water way we well what where who why will with work
would write you
"""
ORDINARY = frozenset(_ORDINARY.split())
"""Further words that are no name: behind an initial they begin a sentence."""

_NOT_BEHIND_A_NUMBER = """
international commodities insider credit corrections financing business leisure dividend review abreast who
letters notable
"""
NOT_BEHIND_A_NUMBER = frozenset(_NOT_BEHIND_A_NUMBER.split())
"""Words that the newspaper had in numbered headlines, so that the original sees no boundary between."""
