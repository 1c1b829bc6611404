// Let the keyboard scroll tables and code that are wider than the page.
function makeFocusable() {
  const wide = ".md-typeset__scrollwrap:not([tabindex]), .md-typeset pre > code:not([tabindex])";
  for (const element of document.querySelectorAll(wide)) element.tabIndex = 0;
}
new MutationObserver(makeFocusable).observe(document.body, { childList: true, subtree: true });
makeFocusable();
