export function h(type: any, props?: any, ...children: any[]): any;
export function render(node: any, parent: Element): void;
export const Fragment: any;
export class Component<P = any, S = any> { constructor(props?: P); props: P; state: S; setState(state: any): void; render(props: P): any; }
