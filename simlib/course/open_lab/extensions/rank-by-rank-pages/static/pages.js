// Makes notebooks easier to read. JupyterLab loads this file as it is; there is no build step.
// The block keeps its names apart from those of other extensions: all of them are scripts of one page.
{
  const KINDS = { notebooks: "Lesson", "notebooks/de": "Lektion", exercises: "Exercise", solutions: "Solution" };

  const STYLE = `
    /* JupyterLab would break a line of output at any letter. A word breaks only if it is longer than a line. */
    .jp-OutputArea .jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; }

    /* Questions stand in comments. JupyterLab's own colour has a contrast of 3.5 on dark cells, 4.2 on light ones. */
    body[data-jp-theme-name="JupyterLab Light"] { --jp-mirror-editor-comment-color: #2a6464; }
    body[data-jp-theme-name="JupyterLab Dark"] { --jp-mirror-editor-comment-color: #75bcbc; }
  `;
  const TABS = Object.values(KINDS).map(
    (kind) => `[data-kind=${kind}] > .lm-TabBar-tabLabel::before { content: "${kind} "; }`
  );

  /** Let a notebook's tab say what kind of notebook it is: a lesson and its exercise have the same file name.
   *  The tab's label has to stay: JupyterLab renames the file when the label changes. */
  const tellKind = {
    createNew({ title }, context) {
      const follow = () => {
        const [, folder, name] = context.localPath.match(/^(?:(.*)\/)?(.*)$/);
        const { kind, ...others } = title.dataset;
        title.dataset = KINDS[folder] && /^(\d\d_|review)/.test(name) ? { ...others, kind: KINDS[folder] } : others;
      };
      follow();
      context.pathChanged.connect(follow);
    },
  };

  const plugin = {
    id: "rank-by-rank-pages:plugin",
    autoStart: true,
    activate(app) {
      const sheet = new CSSStyleSheet();
      sheet.replaceSync(STYLE + TABS.join("\n"));
      document.adoptedStyleSheets.push(sheet);
      app.docRegistry.addWidgetExtension("Notebook", tellKind);
    },
  };

  // What JupyterLab's loader asks of a container of extensions.
  (window._JUPYTERLAB ??= {})["rank-by-rank-pages"] = {
    init() {},
    async get() {
      return () => ({ __esModule: true, default: plugin });
    },
  };
}
