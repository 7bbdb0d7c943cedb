"""The texts of benchmarks/decontamination.py, written for it: questions, and hard negatives made of their
phrases.

A hard negative is another problem that says what many problems say: how the answer is written, a definition,
an identity. It shares whole sentences with questions and asks something else.
"""

from __future__ import annotations

TAILS = (
    "The answer can be written as $\\frac{m}{n}$, where $m$ and $n$ are relatively prime positive integers. "
    "Find $m + n$.",
    "Find the remainder when the result is divided by $1000$.",
    "Express your answer as a common fraction in lowest terms.",
    "Give your answer as a single integer, without units and without any explanation of the steps.",
    "How many ordered pairs of positive integers satisfy all of these conditions at the same time?",
)
"""How problems end."""

LONG = (
    "A ferry crosses a river of width $600$ metres in $25$ minutes while the current pushes it $150$ metres "
    "downstream; "
    "on the way back the captain steers against the current and lands where he started. How long is the "
    "return?",
    "Nora stacks cubes into a staircase whose lowest step has $15$ cubes and whose every higher step has "
    "two fewer. "
    "She then paints all faces that can be seen from the front. How many faces does she paint?",
    "In a library every shelf holds either $18$ thick or $30$ thin volumes. After a flood the librarian "
    "fills $11$ "
    "shelves with the rescued books and counts $246$ of them. How many of the shelves are full of thick "
    "volumes?",
    "Triangle $KLM$ has a right angle at $L$, and the foot of the altitude from $L$ divides the hypotenuse "
    "into parts "
    "of length $9$ and $16$. A circle touches both legs and passes through that foot. What is its radius?",
    "A baker shapes loaves of $450$ grams and rolls of $70$ grams from one batch of dough. Today he used up "
    "exactly "
    "$12300$ grams and made three times as many rolls as loaves. How many loaves went into the oven?",
    "Let $f$ be a polynomial of degree $4$ with $f(1)=f(2)=f(3)=f(4)=7$ and $f(0)=31$. Its graph meets the "
    "line $y=x$ "
    "at four points whose abscissas are added up. What is that total?",
    "Seven lighthouse keepers exchange postcards. Each writes to exactly $3$ others, and no two of them "
    "write to each "
    "other in both directions. In how many ways can the correspondence be arranged if the youngest writes "
    "first?",
    "A spider walks on the surface of a closed box measuring $3$ by $4$ by $12$ decimetres from one corner "
    "to the "
    "opposite corner and never touches the floor twice. What is the square of the length of its shortest "
    "walk?",
    "An old clock loses $4$ minutes every hour. It was set right at six in the morning, and when it struck "
    "noon its "
    "owner left for the station. By how many minutes did he miss the train of half past twelve?",
    "Sequence $a_1, a_2, \\ldots$ begins with $a_1 = 5$, and every later term is the sum of the digits of "
    "the square of "
    "the term before it, increased by $3$. Determine the term with index $2024$.",
    "Two candles of the same length are lit together; the first burns down in $4$ hours and the second in "
    "$5$. After "
    "some time one of them is three times as long as the other. How many minutes have passed since they "
    "were lit?",
    "Sophie folds a rectangular sheet of $20$ by $28$ centimetres so that two opposite corners meet, and "
    "cuts off "
    "what does not lie double. What fraction of the sheet's area lies on the floor afterwards?",
    "The vineyard of the Perez family has rows of equal length. If every row had $6$ more vines, $5$ rows "
    "fewer would "
    "hold the same $600$ vines. How many rows has the vineyard?",
    "A password consists of $6$ different letters of the word HYDRANGEAS in alphabetical order, of which no "
    "two are "
    "vowels that follow each other. How many passwords of this kind are there?",
    "On a circular track Ines runs one lap in $72$ seconds and Jonas, who runs the other way, meets her "
    "every $32$ "
    "seconds. After how many seconds are both at the starting line again for the first time?",
    "A chess club of $14$ members plays a tournament in which every pair meets once; a win counts $3$ "
    "points and a draw "
    "one point for each side. At the end $241$ points were given away. How many games ended in a draw?",
    "A wooden cone of height $24$ and radius $10$ floats with its tip downwards so that the water covers "
    "half of its "
    "volume. The circle of the waterline has area $k\\pi$. Find the integer nearest to $k$.",
    "Marble quarry wagons leave every $14$ minutes, fully loaded wagons weigh $23$ tonnes, and the bridge "
    "carries at "
    "most two of them at a time for the $31$ minutes that a crossing takes. How many wagons must wait "
    "before nightfall?",
    "The numbers on the faces of three dice are multiplied. Given that the product is a multiple of $45$, "
    "what is the "
    "chance that exactly one of the dice shows a five and the other two show equal faces?",
    "Hikers carry $19$ litres of water for a walk of $4$ days. Each adult drinks half again as much as a "
    "child, and the "
    "$3$ adults together need a quarter more than all the children. How many millilitres may a child drink "
    "daily?",
)

MIDDLE = (
    "How many squares of any size are there on a board of $7$ by $9$ fields?",
    "A rope of $84$ metres is cut so that one piece is three quarters of the other.",
    "What is the largest prime that divides both $2310$ and the number of minutes in a leap year?",
    "Which two-digit numbers become $27$ larger when their digits change places?",
    "The mean of nine numbers is $14$; without the smallest it is $16$. Find the smallest.",
    "Solve $\\sqrt{3x+10} = x$ for all real $x$ that exceed their own reciprocal.",
    "For which positive $k$ do the parabola $y=x^2+k$ and its mirror image enclose area $36$?",
    "A train $180$ metres long passes a signalman in $9$ seconds; how fast does it go?",
    "How many zeros stand at the end of the product of all odd multiples of five below $400$?",
    "Evaluate the sum of the squares of the roots of $2x^3 - 9x + 4$ over the complex plane.",
    "Peeled potatoes lose a fifth of their weight; how much must Olga buy for $6$ kilograms?",
    "In how many orders can five cars leave a garage whose doors open one behind another?",
    "What is the area of a kite whose diagonals measure $13$ and $22$ centimetres?",
    "Find all integers $n$ for which $n^2 + 19n + 92$ is the square of an integer.",
    "A snail climbs three metres by day and slides two back at night; when does it leave a well of $17$ "
    "metres?",
)

SHORT = (
    "Compute $17 \\cdot 23 - 4^3$.",
    "Simplify $\\frac{84}{126}$.",
    "Factor $x^2 - 13x + 36$.",
    "What is $35\\%$ of $640$?",
    "Find $\\gcd(924, 1365)$.",
    "Evaluate $\\binom{11}{4}$ exactly.",
    "Convert $2A7_{16}$ to decimal.",
    "Solve $5^{x} = 3125$.",
    "Expand $(2a - 3b)^3$ completely.",
    "Differentiate $x^3 e^{2x}$ twice.",
    "Round $\\pi^5$ to tenths.",
    "Is $2027$ a prime number?",
)

HEADS = (
    "A tailor buys cloth in three colours and uses it up evenly.",
    "Let $S$ be the set of all subsets of a $12$-element set with an even number of elements.",
    "Grandmother's recipe asks for twice as many almonds as raisins.",
    "Consider the graph of the absolute value of a cubic with three real roots.",
    "A pond is stocked with trout and perch, and a sample of them is caught at random.",
    "Point $P$ moves along the side of a regular hexagon.",
    "Every employee of a small factory works either early or late.",
    "The digits of a telephone number are chosen independently.",
    "Two mirrors form an angle, and a ray of light enters between them.",
    "A merchant mixes two kinds of coffee at different prices.",
    "An escalator moves upwards while a child runs down on it.",
    "A sphere is inscribed in a tetrahedron with equal edges.",
    "Rows of a spreadsheet are coloured by the remainder of their number.",
    "The perimeter of an isosceles trapezoid is known, and so is its height.",
    "Three friends divide the cost of a taxi by the distance that each of them rode.",
    "A biased coin is thrown until the same side has come up on two throws in a row.",
    "The product of two consecutive even numbers is compared with the square between them.",
    "Water drips from a tap into a cylindrical vessel.",
    "An arithmetic progression and a geometric progression share their first and third terms.",
    "In a parliament of five parties coalitions need more than half of the seats.",
    "Letters are put into envelopes at random, and none arrives where it should.",
    "The shadow of a tower grows during the afternoon.",
    "A frog jumps between the vertices of a cube.",
    "Each cell of a beehive touches six others.",
    "A sum of money earns interest that is added every quarter.",
    "Five points lie on a circle, and all chords between them are drawn.",
    "A farmer fences a field along a river.",
    "Tiles of two shapes cover a bathroom floor.",
    "The hands of a clock form a right angle several times between noon and midnight.",
    "An integer is written in base seven and in base nine with the same digits.",
    "A committee is elected from teachers and parents.",
    "The sides of a triangle are consecutive integers.",
    "Two cyclists start from neighbouring villages towards each other.",
    "A magic square has lost some of its entries.",
    "Balls are drawn from an urn without being put back.",
    "A function satisfies an equation for all real arguments.",
    "The roots of a quadratic are the tangents of two acute angles.",
    "A ladder leans against a wall and begins to slide.",
    "Pages of a book are numbered, and a sheet was torn out.",
    "A pyramid is cut by a plane parallel to its base.",
)
"""How other problems begin; with each of TAILS they are hard negatives."""
