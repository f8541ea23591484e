// Excerpts below the results of the search. Sphinx fetches each page for them, which a browser
// refuses to a page that comes from a folder; here the texts of all pages are a script (texts.js).

const AROUND = [80, 200];  // letters before and after the first word that was found

/** Of a page's sections, the one that has most of the words. */
function bestSection(sections, words) {
  const count = ([, text]) => words.filter((word) => text.toLowerCase().includes(word)).length;
  return sections.reduce((best, one) => (count(one) > count(best) ? one : best));
}

/** A paragraph with the text around the first of the words, which are all marked. */
function excerpt(text, words) {
  const either = new RegExp(`((?:${words.join("|")})[\\p{Letter}\\p{Number}]*)`, "iu");
  const at = Math.max(text.search(either), 0);
  const begin = at > AROUND[0] ? text.indexOf(" ", at - AROUND[0]) + 1 : 0;
  const cut = text.slice(begin, at + AROUND[1]), ends = begin + cut.length === text.length;
  const shown = ends ? cut : cut.replace(/\s\S*$/, "");
  const paragraph = document.createElement("p");
  paragraph.className = "context";
  paragraph.append(begin ? "... " : "", ...shown.split(either).map((piece, index) => {
    if (index % 2 === 0) return piece;
    return Object.assign(document.createElement("mark"), { textContent: piece });
  }), ends ? "" : " ...");
  return paragraph;
}

/** Add an excerpt to a result; a result that is a whole page leads to its best section. */
function explain(result, words) {
  const link = result.querySelector("a"), [page, anchor] = link.getAttribute("href").split("#");
  const sections = TEXTS[page.replace(/\.html$/, "")] ?? [];
  const named = sections.filter(([id]) => id === anchor);
  if (sections.length === 0) return;
  const [id, text] = bestSection(named.length ? named : sections, words);
  if (anchor === undefined && id !== sections[0][0]) link.hash = id;
  if (text) result.append(excerpt(text, words));
}

/** Words as the index has them: without their endings, where that is how they begin. */
function stemmed(word) {
  const stem = new Stemmer().stemWord(word);
  return word.startsWith(stem) ? stem : word;
}

// A lesson that explains a word comes before names that contain it.
Scorer.score = ([page, , , , score]) => score + (page.startsWith("notebooks/") ? 5 : 0);

// A name of the reference has a page of its own: one result for both.
const objects = Search.performObjectSearch;
Search.performObjectSearch = (...asked) =>
  objects(...asked).filter(([page, , anchor]) => !page.endsWith(`/${anchor.slice(1)}`));

const query = new URLSearchParams(location.search).get("q") ?? "";
const words = splitQuery(query.toLowerCase()).map(stemmed);
new MutationObserver((changes) => {
  for (const { addedNodes } of changes)
    for (const node of addedNodes) if (node.matches?.("li")) explain(node, words);
}).observe(document.getElementById("search-results"), { childList: true, subtree: true });
